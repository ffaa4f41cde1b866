"""A mixture's experts on the ranks that have them, and the tokens' way there."""
