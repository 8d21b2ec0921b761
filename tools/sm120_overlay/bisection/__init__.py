"""Revisions → measurements → verdict: which change of upstream's did it, if any.

`queue` says what the revisions are and puts the series on them; a command of the user's measures. What is decided is
decided by `decision`, which knows neither git nor commands: programs by number, readings, and what to run next.
"""
