"""The laboratory: experiments become trials, trials become run folders."""
