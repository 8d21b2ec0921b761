"""Tests of the survey: what upstream's changes do to every patch."""
