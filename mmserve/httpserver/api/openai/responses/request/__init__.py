"""What a Responses request and its queries may say, down to the items of the input."""
