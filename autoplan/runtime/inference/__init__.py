"""The forward alone, for any number of rows, in training programs and in inference programs."""
