"""`slime-swe rehearse`: a recipe end to end with the real parts, at toy width, and checks of what it left behind."""
