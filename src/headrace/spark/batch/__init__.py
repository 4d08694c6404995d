"""The same app as an ordinary Spark job over all that its inputs hold: no containers, changelogs or coordinator."""
