"""What a Run's Book is written with: objects read, times in columns, many numbers into few."""
