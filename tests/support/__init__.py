"""What the tests of several packages share: real servers, started and stopped by their own handles."""
