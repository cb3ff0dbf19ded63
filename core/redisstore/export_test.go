package redisstore

// Scripts is how many scripts a store loads.
var Scripts = len(allScripts)
