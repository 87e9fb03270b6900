"""What the tests of the listening service share."""
