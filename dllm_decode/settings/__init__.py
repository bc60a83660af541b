"""Reads settings from text: plug-ins, models, files, and the options of commands."""
