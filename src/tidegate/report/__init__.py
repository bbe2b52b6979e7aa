"""Runs shown to people: terminal tables, JSON, a one-file HTML page.

In: `RunRecord`s and their `RunFigures`. Out: Rich renderables and HTML text. Nothing is computed here that a figure
already says, and nothing unknown is shown as a number.
"""
