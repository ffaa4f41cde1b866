"""What a report says beside the plan: alternatives, the price of a pin, what would make a plan fit."""
