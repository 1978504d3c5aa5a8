"""What is done with a batch of images: decoded, held until the tower has room, encoded."""
