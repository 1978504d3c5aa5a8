"""Times, rates and floors on a device."""
