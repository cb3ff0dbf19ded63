package statement

import (
	"regexp"
	"strings"
)

// DefaultSchema is the schema in the texts of statements.
const DefaultSchema = "lk"

var qualified = regexp.MustCompile(`\blk\b(\.|;| AUTH| TO)`)

// InSchema returns a text with a schema in the place of the default one.
func InSchema(schema, text string) string {
	if schema == DefaultSchema {
		return text
	}
	text = strings.ReplaceAll(text, "'lk.operation'", "'"+schema+".operation'") // a setting, whose name has no quotes
	return qualified.ReplaceAllString(text, Quoted(schema)+"${1}")
}

// Quoted returns the name of a schema as an SQL identifier: it may be a keyword.
func Quoted(schema string) string { return `"` + schema + `"` }

// Text returns a constant text with the client's schema in the place of the default one.
func (db *Client) Text(text string) string {
	if db.config.Schema == DefaultSchema {
		return text
	}
	if known, ok := db.texts.Load(text); ok {
		return known.(string)
	}
	known, _ := db.texts.LoadOrStore(text, InSchema(db.config.Schema, text))
	return known.(string)
}
