"""The way in: consumers, the choice of what is next, frames judged and decoded."""
