"""What the gateway costs per streamed token."""
