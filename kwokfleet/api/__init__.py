"""New package."""
