"""`ray:BACKEND`: the sandboxes of another backend, on all nodes of a Ray cluster."""
