"""What to run next, and when enough is known: numbers in, numbers out. No git, no commands, no clock, no state."""
