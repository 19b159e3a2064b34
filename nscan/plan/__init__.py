"""The plan: from a tape to a loop program, for every target."""
