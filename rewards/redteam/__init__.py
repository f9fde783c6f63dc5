"""The integrity gate: scripted cheats, which must get no reward, and honest work, which must be graded on its merit."""
