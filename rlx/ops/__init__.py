"""Named operations by family; each file holds what there is to know of its operations."""
