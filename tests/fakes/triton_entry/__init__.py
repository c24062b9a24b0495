"""A scripted entry behind real gRPC and metrics ports."""
