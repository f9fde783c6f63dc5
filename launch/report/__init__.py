"""`slime-swe report`: what runs left behind, as a page that a browser opens from the disk, without a network."""
