"""What an app must remember outside its streams (generations): small values with versions."""
