"""What is learned one after another, and what the stages share."""
