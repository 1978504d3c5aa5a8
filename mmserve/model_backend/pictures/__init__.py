"""What a device makes of the bytes of whole pictures before a vision tower reads them."""
