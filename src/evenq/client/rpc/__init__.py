"""Protocol layer of the SDK: the model to protobuf bytes and back, over the `Net` interface."""
