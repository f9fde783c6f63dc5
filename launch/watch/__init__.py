"""Following a run that another process trains, from what it leaves in its folder."""
