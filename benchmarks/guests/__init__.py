"""What pre- and post-processing cost on the real server, beside a pair made with transformers."""
