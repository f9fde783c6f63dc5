"""`slime-swe make-tasks`: candidates of `data_sources/factory` are run, proven and written."""
