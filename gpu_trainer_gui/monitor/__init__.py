"""What the driver and the host say about the machine. No torch, no Qt."""
