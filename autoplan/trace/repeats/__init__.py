"""What repeats among a model's layers: two repeats are traced instead of eighty."""
