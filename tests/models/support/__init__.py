"""What the tests of the model cache share."""
