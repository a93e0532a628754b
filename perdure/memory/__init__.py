"""What a method keeps between tasks: bases of layer inputs, replay buffers, banks of tensors."""
