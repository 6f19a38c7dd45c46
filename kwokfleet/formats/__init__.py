"""Pure readers and writers of other systems' files, one module each."""
