"""What the tests of the thinking service share."""
