"""Direct exchanges: who sends which box of a tensor to whom, and what that puts on the links."""
