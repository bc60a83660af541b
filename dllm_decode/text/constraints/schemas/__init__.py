"""JSON schemas as sets of JSON texts.

A part of a schema is first a set of values, on which "and", "or" and "not" are exact; then the
texts of the values are written as an automaton, each value in one way.
"""
