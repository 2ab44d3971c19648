"""Engine rules at values worked out by hand."""
