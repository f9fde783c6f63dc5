"""The integrity gate: scripted cheats, each of which must earn nothing, and honest work, which must be graded."""
