"""What an app must remember outside its streams (generations, startpoints): small, versioned values."""
