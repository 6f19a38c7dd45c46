"""What kwok would stumble over in a Stage, told before kwok sees it."""
