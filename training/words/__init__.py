"""What is asked about a picture and answered."""
