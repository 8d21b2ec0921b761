"""Tests of moving a series to another pin."""
