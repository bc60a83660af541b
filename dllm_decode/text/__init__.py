"""Texts in, texts out: answers, streams, templates with blanks, typed reads."""
