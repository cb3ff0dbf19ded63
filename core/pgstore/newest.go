package pgstore

// newestOf returns a search for the newest version of the row of a table whose id is $1.
//
// While a transaction is open that is older, such as a backup's, the server keeps all versions that
// a row has had since, and a search by id = $1 passes them from the oldest to the newest: a hot row
// would get slower with every change. The versions stand in the index in the order of their places,
// in which new ones are nearly always last. A scan of a range, other than that of a single id, can
// go backward.
func newestOf(table string) string {
	return "(SELECT n.ctid FROM " + table + " n WHERE n.id >= $1 AND n.id <= $1 ORDER BY n.id DESC LIMIT 1)"
}
