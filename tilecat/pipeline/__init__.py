"""Pipelines written in the language: rings, schedules, templates."""
