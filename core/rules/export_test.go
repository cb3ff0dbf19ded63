package rules

// BadDocuments returns the table of bad documents by their names.
func BadDocuments() map[string]string {
	all := make(map[string]string)
	for _, c := range bad {
		all[c.name] = c.text
	}
	return all
}

// NamesIn returns the names of a good document, by their paths.
func NamesIn(text string) (all []string) {
	d, err := read([]byte(text), nil)
	if err != nil {
		return nil
	}
	for name := range d.limits {
		all = append(all, limits+"."+name)
	}
	for name := range d.semaphores {
		all = append(all, semaphores+"."+name)
	}
	return all
}

// GoodDocuments returns the table of good documents by their names.
func GoodDocuments() map[string]string { return good }
