"""The SDK's speaking: model to protobuf bytes and back, over the `Net` seam. The only room of the SDK that knows
the wire.
"""
