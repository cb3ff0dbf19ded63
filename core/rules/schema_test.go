package rules

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/goccy/go-yaml"

	"github.com/lockkeeper/lockkeeper/core/store"
)

//go:embed schema.json
var schemaText []byte

// object is a JSON object.
type object = map[string]any

func schema(t testing.TB) object {
	t.Helper()
	var s object
	if err := json.Unmarshal(schemaText, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// at returns what a schema has at a path.
func at(t testing.TB, s object, path ...string) object {
	t.Helper()
	for _, name := range path {
		next, ok := s[name].(object)
		if !ok {
			t.Fatalf("the schema has nothing at %s of %v", name, path)
		}
		s = next
	}
	return s
}

// Each field of the walker is in the schema, and the other way round.
func TestSchemaHasTheFields(t *testing.T) {
	s, r := schema(t), &reader{}
	o := &overrides{reader: r}
	for name, c := range map[string]struct {
		known fields
		path  []string
	}{
		"document":              {r.documentFields(&document{}), nil},
		"limiter":               {r.limitFields(&limitRule{}), []string{"$defs", "limitRule"}},
		"override of a limiter": {r.limitItemFields(o, &limitItem{}), []string{"$defs", "limitRule", "properties", "overrides", "items"}},
		"semaphore":             {r.semaphoreFields(&semaphoreRule{}), []string{"$defs", "semaphoreRule"}},
		"tiers":                 {r.tierFields(&tiers{}), []string{"$defs", "semaphoreRule", "properties", "tiers"}},
		"override of one":       {r.semaphoreItemFields(o, &semaphoreItem{}), []string{"$defs", "semaphoreRule", "properties", "overrides", "items"}},
	} {
		in := at(t, s, c.path...)
		got := slices.Sorted(maps.Keys(at(t, in, "properties")))
		if want := slices.Sorted(maps.Keys(c.known)); !slices.Equal(got, want) || in["additionalProperties"] != false {
			t.Errorf("%s: the schema has the fields %v, the walker %v", name, got, want)
		}
	}
	if most := at(t, s, "$defs", "capacity")["maximum"]; most != float64(store.MaxCapacity) {
		t.Errorf("the largest capacity is %v", most)
	}
}

// The schema refuses bad documents as far as it can express what is wrong, and no good one.
func TestSchemaAgrees(t *testing.T) {
	v := validator{t, schema(t)}
	refuses := func(text string) string {
		var d any
		if err := yaml.UnmarshalWithOptions(bytes.TrimPrefix([]byte(text), byteOrderMark), &d, yaml.AllowDuplicateMapKey()); err != nil {
			return ""
		}
		return v.check(v.root, d, "")
	}
	marked := 0
	for _, c := range bad {
		if problem := refuses(c.text); (problem != "") != c.schema {
			t.Errorf("%s: the schema says %q, want an error: %v", c.name, problem, c.schema)
		}
		if c.schema {
			marked++
		}
	}
	if marked < 30 {
		t.Errorf("the schema refuses %d documents of the table", marked)
	}
	for name, text := range good {
		if problem := refuses(text); problem != "" {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// validator checks documents by those keywords of JSON Schema that the schema uses.
type validator struct {
	t    testing.TB
	root object
}

// check returns what is wrong with a value, or empty.
func (v validator) check(s object, value any, path string) string {
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		if problem := v.keyword(s, keyword, value, path); problem != "" {
			return problem
		}
	}
	return ""
}

func (v validator) keyword(s object, keyword string, value any, path string) string {
	fields, isObject := value.(object)
	items, isArray := value.([]any)
	text, isString := value.(string)
	number, isNumber := toFloat(value)
	length := float64(utf8.RuneCountInString(text))
	limit, _ := s[keyword].(float64)
	fail := func(is bool) string {
		if is {
			return fmt.Sprintf("%s: %v is not as %s says", path, value, keyword)
		}
		return ""
	}
	switch keyword {
	case "$schema", "title", "description", "$defs":
	case "$ref":
		ref, _ := strings.CutPrefix(s[keyword].(string), "#/")
		return v.check(at(v.t, v.root, strings.Split(ref, "/")...), value, path)
	case "type":
		types, ok := s[keyword].([]any)
		if !ok {
			types = []any{s[keyword]}
		}
		_, isBool := value.(bool)
		is := map[string]bool{
			"object": isObject, "array": isArray, "string": isString, "boolean": isBool, "number": isNumber,
			"integer": isNumber && number == math.Trunc(number),
		}
		return fail(!slices.ContainsFunc(types, func(t any) bool { return is[t.(string)] }))
	case "enum":
		return fail(!slices.ContainsFunc(s[keyword].([]any), func(e any) bool { return reflect.DeepEqual(e, value) }))
	case "minimum":
		return fail(isNumber && number < limit)
	case "maximum":
		return fail(isNumber && number > limit)
	case "minLength":
		return fail(isString && length < limit)
	case "maxLength":
		return fail(isString && length > limit)
	case "pattern":
		return fail(isString && !regexp.MustCompile(s[keyword].(string)).MatchString(text))
	case "minItems":
		return fail(isArray && float64(len(items)) < limit)
	case "maxItems":
		return fail(isArray && float64(len(items)) > limit)
	case "uniqueItems":
		for i := range items {
			if slices.Contains(items[:i], items[i]) {
				return fail(true)
			}
		}
	case "items":
		for i, item := range items {
			if p := v.check(s[keyword].(object), item, fmt.Sprint(path, "[", i, "]")); p != "" {
				return p
			}
		}
	case "maxProperties":
		return fail(isObject && float64(len(fields)) > limit)
	case "required":
		return fail(isObject && slices.ContainsFunc(s[keyword].([]any), func(f any) bool { _, has := fields[f.(string)]; return !has }))
	case "propertyNames":
		for name := range fields {
			if p := v.check(s[keyword].(object), name, path+"."+name); p != "" {
				return p
			}
		}
	case "properties":
		for name, sub := range s[keyword].(object) {
			if field, has := fields[name]; has {
				if p := v.check(sub.(object), field, path+"."+name); p != "" {
					return p
				}
			}
		}
	case "additionalProperties":
		known, _ := s["properties"].(object)
		sub, allowed := s[keyword].(object)
		for name, field := range fields {
			if _, ok := known[name]; ok {
				continue
			}
			if !allowed {
				return path + "." + name + " is not known"
			}
			if p := v.check(sub, field, path+"."+name); p != "" {
				return p
			}
		}
	case "not":
		return fail(v.check(s[keyword].(object), value, path) == "")
	case "anyOf", "oneOf":
		fits := 0
		for _, sub := range s[keyword].([]any) {
			if v.check(sub.(object), value, path) == "" {
				fits++
			}
		}
		return fail(fits == 0 || keyword == "oneOf" && fits > 1)
	default:
		v.t.Errorf("the schema has the keyword %s, which this test does not know", keyword)
	}
	return ""
}

func toFloat(value any) (float64, bool) {
	r := reflect.ValueOf(value)
	switch {
	case r.CanInt():
		return float64(r.Int()), true
	case r.CanUint():
		return float64(r.Uint()), true
	case r.CanFloat():
		return r.Float(), true
	}
	return 0, false
}
